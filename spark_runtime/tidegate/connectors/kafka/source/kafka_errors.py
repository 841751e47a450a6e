"""Meaning of the errors of a Kafka client, and the source's own errors (S9.1). Pure."""

from __future__ import annotations

from typing import Any, Literal

from tidegate.connectors.kafka.cluster import KafkaCluster
from tidegate.connectors.kafka.tls import tls_remedy
from tidegate.errors import DataError, OutageError, PipelineError, TidegateError
from tidegate.jobs.secrets import MASK, is_reference, resolve_secrets

Meaning = Literal["refused", "missing", "out_of_range", "damaged", "outage", "other"]

_MEANINGS: dict[str, Meaning] = {
    **dict.fromkeys(
        (
            "_AUTHENTICATION",
            "SASL_AUTHENTICATION_FAILED",
            "UNSUPPORTED_SASL_MECHANISM",
            "ILLEGAL_SASL_STATE",
            "TOPIC_AUTHORIZATION_FAILED",
            "GROUP_AUTHORIZATION_FAILED",
            "CLUSTER_AUTHORIZATION_FAILED",
        ),
        "refused",
    ),
    **dict.fromkeys(
        (
            "UNKNOWN_TOPIC_OR_PART",
            "UNKNOWN_TOPIC_ID",
            "INCONSISTENT_TOPIC_ID",
            "_UNKNOWN_TOPIC",
            "_UNKNOWN_PARTITION",
        ),
        "missing",
    ),
    **dict.fromkeys(("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"), "out_of_range"),
    **dict.fromkeys(("_BAD_MSG", "_BAD_COMPRESSION", "INVALID_MSG", "INVALID_RECORD"), "damaged"),
    **dict.fromkeys(
        ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_SSL", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "REQUEST_TIMED_OUT"),
        "outage",
    ),
}
"""Name of a `KafkaError` -> its meaning. The client itself retries after all others, such as a change of leader."""
_LOGIN = "Check sasl.username and sasl.password in settings="
_REFUSALS = {
    "_AUTHENTICATION": _LOGIN,
    "SASL_AUTHENTICATION_FAILED": _LOGIN,
    "UNSUPPORTED_SASL_MECHANISM": "Set sasl.mechanism in settings= to one that the brokers have",
    "ILLEGAL_SASL_STATE": "Set security.protocol in settings= to the protocol of the listener",
    "TOPIC_AUTHORIZATION_FAILED": "Give the user the rights Read and Describe on the topics",
    "GROUP_AUTHORIZATION_FAILED": "Give the user the right Read on the consumer group of group=",
    "CLUSTER_AUTHORIZATION_FAILED": "Give the user the right Describe on the cluster",
}
"""Name of an error of a client that is refused -> remedy."""
RECREATED = "was deleted and created again"
FEWER = "has fewer partitions than before"
SHORTEST_SECRET = 4
"""Characters from which on a secret is masked in texts: shorter ones are in many words."""


def meaning(error: Any) -> Meaning:
    """Return what a `KafkaError` means for a source."""
    return "refused" if tls_remedy(error) else _MEANINGS.get(error.name(), "other")


def without_secrets(cluster: KafkaCluster, text: str) -> str:
    """Return a text of the client with every secret of the settings masked."""
    references = {name: value for name, value in cluster.settings.items() if is_reference(value)}
    for secret in resolve_secrets(references).values():
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def request_error(cluster: KafkaCluster, what: str, error: Any, *, reason: str = "") -> TidegateError:
    """Return the error for a request that the cluster did not carry out.

    Args:
        what: what was requested, as the rest of a sentence that begins with "Kafka did not".
        error: a `KafkaError`.
        reason: what the client reported besides, such as a wrong password, which a request sees as a timeout.
    """
    cause = without_secrets(cluster, "; ".join(filter(None, (f"{error.name()}: {error.str()}", reason))))
    if meaning(error) == "refused":
        return refused(cluster, error, cause)
    return OutageError(
        f"Kafka did not {what}",
        where=cluster.place,
        cause=cause,
        remedy="Check that the brokers run, and that servers= and security.protocol fit their listener",
    )


def refused(cluster: KafkaCluster, error: Any, cause: str) -> PipelineError:
    """Return the error for a client that may not connect, log in or read. Args: cause: without secrets."""
    remedy = tls_remedy(error) or _REFUSALS[error.name()]
    return PipelineError("Kafka refuses the client", where=cluster.place, cause=cause, remedy=remedy)


def out_of_range(topic: str, partition: int, offset: int, low: int, high: int) -> PipelineError:
    """Return the error for a position that the partition does not have. It is never reset (S4.2)."""
    if offset < low:
        cause = f"retention or a user has deleted the records before offset {low}, so {low - offset} offsets are lost"
        remedy = (
            'Start the job fresh with start="earliest", and give the topic a longer retention than the longest stop of '
            "the job"
        )
    else:
        cause = f"the partition ends at offset {high}: the topic was created again, or its last records were lost"
        remedy = "Find out what happened to the topic, then start the job fresh with start="
    return PipelineError(
        f"offset {offset} of partition {partition} of the topic {topic!r} does not exist",
        where=f"available are the offsets {low} to {high}",
        cause=cause,
        remedy=remedy,
    )


def no_such_offset(option: str, topic: str, partition: int, offset: int, low: int, high: int) -> PipelineError:
    """Return the error for an offset of `start=` or `until=` that the partition does not have."""
    return PipelineError(
        f"{option} is offset {offset} for partition {partition} of the topic {topic!r}, which does not exist",
        where=f"available are the offsets {low} to {high}",
        remedy=f"Give {option} an offset of this range",
    )


def no_such_group_offset(group: str, topic: str, partition: int, offset: int, low: int, high: int) -> PipelineError:
    """Return the error for an offset of a consumer group that the partition does not have."""
    return PipelineError(
        f"the consumer group {group!r} has committed offset {offset} of partition {partition} of the topic {topic!r}, "
        "which does not exist",
        where=f"available are the offsets {low} to {high}",
        remedy="Reset the offset of the group with Kafka's tools, or pass another start=",
    )


def damaged(cluster: KafkaCluster, topic: str, partition: int, cause: str) -> DataError:
    """Return the error for records that the client cannot read."""
    return DataError(
        f"records of partition {partition} of the topic {topic!r} are damaged",
        where=cluster.place,
        cause=without_secrets(cluster, cause),
        remedy="Repair the partition from another replica, then restart the job",
    )


def vanished(cluster: KafkaCluster, topic: str, what: str = "does not exist any more") -> PipelineError:
    """Return the error for a topic that the job reads and that is not there as before."""
    return PipelineError(
        f"the topic {topic!r} {what}",
        where=cluster.place,
        cause="somebody deleted the topic while the job, or its snapshot, needed it",
        remedy="Start the job fresh, without this topic or with the new one",
    )
