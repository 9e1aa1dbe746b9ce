"""The device's side of a service: encode, measure the leak, add keyed noise, ask."""
