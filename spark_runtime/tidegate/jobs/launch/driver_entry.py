"""The program that spark-submit is given: the driver of a job, from the tidegate that its Python has installed.

It imports nothing of tidegate's by name, so that a copy of this one file may lie anywhere: in an image, or where YARN
unpacks it.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("tidegate.spark.driver", run_name="__main__", alter_sys=True)
