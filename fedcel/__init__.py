"""Privacy-preserving split inference, trained federatedly, measured honestly."""
