"""The same query on other engines. Each module runs alone, as a process."""
