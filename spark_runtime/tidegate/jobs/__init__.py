"""The job directory and everything that reads or writes it without Spark: records, log, status, launchers, clients."""
