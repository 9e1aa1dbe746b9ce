"""Flower's side of a client: the ClientApp and its NumPyClients, for training and evaluation."""
