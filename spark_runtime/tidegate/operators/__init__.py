"""Operators and their specs. A spec describes an operator in the graph; `operator_registry` names its class."""
