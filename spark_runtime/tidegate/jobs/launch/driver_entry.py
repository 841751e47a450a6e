"""The program that spark-submit runs: a job's driver, from the tidegate that its Python has installed.

It has no import of tidegate, so that a copy of this file can be anywhere: in an image, or where YARN unpacks it.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("tidegate.spark.driver", run_name="__main__", alter_sys=True)
