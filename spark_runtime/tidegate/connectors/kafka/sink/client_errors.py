"""Errors of the Kafka client: which ones pass, and what to do about the others."""

from __future__ import annotations

from typing import Any

from tidegate.connectors.kafka.tls import tls_remedy
from tidegate.errors import OutageError, TidegateError

RIGHTS = (
    "Give the user of the sink these rights: Write, Read and Describe on the topics; Read and Describe on groups, and "
    "Write and Describe on transactional ids, that begin with `tidegate,`"
)
_TIMEOUT = "Set transaction_timeout= of the sink to at most transaction.max.timeout.ms of the brokers"
_SIZE = "Raise max.message.bytes of the topic, then restore the job; the records stay staged"
_LOGIN = "Check sasl.username and sasl.password in settings= of the sink"
_TOPIC = "Create the topic or its partitions again, then restore the job; the records stay staged"
_RECORD = "Compare the topic's settings with the records: a compacted topic accepts no record without a key"
_SERVER = "Use brokers of Kafka 2.5 or newer, with transactions"
REMEDIES = {
    "TOPIC_AUTHORIZATION_FAILED": RIGHTS,
    "GROUP_AUTHORIZATION_FAILED": RIGHTS,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": RIGHTS,
    "CLUSTER_AUTHORIZATION_FAILED": RIGHTS,
    "SASL_AUTHENTICATION_FAILED": _LOGIN,
    "_AUTHENTICATION": _LOGIN,
    "INVALID_TRANSACTION_TIMEOUT": _TIMEOUT,
    "MSG_SIZE_TOO_LARGE": _SIZE,
    "RECORD_LIST_TOO_LARGE": _SIZE,
    "INVALID_RECORD": _RECORD,
    "INVALID_TIMESTAMP": _RECORD,
    "POLICY_VIOLATION": _RECORD,
    "UNKNOWN_TOPIC_OR_PART": _TOPIC,
    "_UNKNOWN_TOPIC": _TOPIC,
    "_UNKNOWN_PARTITION": _TOPIC,
    "UNSUPPORTED_VERSION": _SERVER,
    "_UNSUPPORTED_FEATURE": _SERVER,
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": _SERVER,
    "_INVALID_ARG": "Check settings= of the sink",
}
"""Name of an error that does not pass -> remedy. All other errors may pass."""


def error_of(exception: BaseException) -> Any:
    """Return the `KafkaError` in a `KafkaException`."""
    return exception.args[0]


def passes(error: Any) -> bool:
    """Return whether another attempt may succeed after this error."""
    return not _remedy(error)


def _remedy(error: Any) -> str:
    return tls_remedy(error) or REMEDIES.get(error.name(), "")


def as_tidegate_error(what: str, error: Any, *, where: str, problem: Any = None) -> TidegateError:
    """Return the error to raise for an error of the client. Args: problem: the last one of a connection, or None."""
    text = f"{error.str()} ({error.name()})"
    if problem is not None and problem.name() != error.name():
        text += f"; {problem.str()} ({problem.name()})"
        # A client that may not log in only says that it got no answer.
        error = error if not passes(error) or passes(problem) else problem
    if passes(error):
        remedy = "Check the brokers and the network. The job tries again according to its restart strategy"
        return OutageError(what, where=where, cause=text, remedy=remedy)
    return TidegateError(what, where=where, cause=text, remedy=_remedy(error))
