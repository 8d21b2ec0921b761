"""The overlay for people who serve large models on SM120 GPUs."""
