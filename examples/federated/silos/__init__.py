"""A Flower app: four employers train together, each record within its own ε."""
