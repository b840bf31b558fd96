"""From a run's folder to what others read: a page, a model card, a registry file."""
