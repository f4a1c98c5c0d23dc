"""What HAPPENS to a batch: the step, the loop, validation, checkpoints and ranks."""
