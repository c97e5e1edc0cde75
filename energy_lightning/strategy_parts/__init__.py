"""What `KareusStrategy` is made of: settings, the job's shape and device, the two ways to execute a model."""
