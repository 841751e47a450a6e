"""Operations of a client on a job: submit, send commands, wait, read state."""
