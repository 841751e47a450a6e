"""Sources and sinks of PySpark's Python data source API (`pyspark.sql.datasource`), without Spark SQL."""
