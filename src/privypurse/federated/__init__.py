"""Federated training: records with their own ε at several clients, a server that never sees a budget."""
