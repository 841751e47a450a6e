"""What every store of a job directory must do."""
