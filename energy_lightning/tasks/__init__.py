"""Text tasks for training and rehearsing: corpora, data modules, models and LightningModules."""
