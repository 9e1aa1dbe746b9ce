"""Split inference over HTTP: private answers, charged to a ledger before they are drawn."""
