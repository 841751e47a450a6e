"""Sources of PySpark's Python data source API (`pyspark.sql.datasource`), read without Spark SQL."""
