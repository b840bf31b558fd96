"""A training run as a file: configuration → data → plan → training → a folder with model, plan and metrics."""
