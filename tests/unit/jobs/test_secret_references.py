"""References to secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import OptionError
from tidegate.jobs.secrets import check_no_plain_secrets, redact, resolve_secrets


def test_references_are_resolved_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_SECRET", "from the environment")
    (tmp_path / "secret").write_text("from a file\n")
    given = {
        "secret": "secret:env/TIDEGATE_TEST_SECRET",
        "nested": {"token": f"secret:file/{tmp_path}/secret"},
        "list": [f"secret:file{tmp_path}/secret", 1],
        "plain": "value",
        "number": 3,
    }
    assert resolve_secrets(given) == {
        "secret": "from the environment",
        "nested": {"token": "from a file"},
        "list": ["from a file", 1],
        "plain": "value",
        "number": 3,
    }
    assert given["secret"] == "secret:env/TIDEGATE_TEST_SECRET"


def test_a_missing_secret_is_named_with_option_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_TEST_SECRET", raising=False)
    with pytest.raises(
        OptionError, match=r"TIDEGATE_TEST_SECRET cannot be read \[client_kwargs.secret\].*Set TIDEGATE"
    ):
        resolve_secrets({"client_kwargs": {"secret": "secret:env/TIDEGATE_TEST_SECRET"}})
    with pytest.raises(OptionError, match="cannot be read"):
        resolve_secrets({"secret": "secret:file/nowhere/at/all"})


@pytest.mark.parametrize("reference", ["secret:", "secret:env", "secret:env/", "secret:file/", "secret:vault/x"])
def test_a_malformed_reference_is_refused(reference: str) -> None:
    with pytest.raises(OptionError, match="is not a reference"):
        resolve_secrets({"x": reference})


def test_redaction_masks_secrets_and_keeps_references() -> None:
    shown = redact({"secret": "abc", "key": "secret:env/K", "endpoint_url": "http://x", "more": {"password": "p"}})
    assert shown == {"secret": "***", "key": "secret:env/K", "endpoint_url": "http://x", "more": {"password": "***"}}


@pytest.mark.parametrize(
    ("values", "storage"),
    [
        ({"spark.hadoop.fs.s3a.secret.key": "abc"}, False),
        ({"db_password": "abc"}, False),
        ({"nested": {"api_key": "abc"}}, False),
        ({"key": "abc"}, True),
        ({"spark.ssl.keyPassword": "abc"}, False),
        ({"spark.hadoop.javax.jdo.option.ConnectionPassword": "abc"}, False),
        ({"spark.kubernetes.authenticate.submission.oauthToken": "abc"}, False),
        ({"awsSecretAccessKey": "abc"}, False),
        ({"spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "abc"}, False),
        ({"spark.hadoop.fs.azure.account.oauth2.client.secret.lake.dfs.core.windows.net": "abc"}, False),
    ],
)
def test_a_secret_in_plain_text_is_refused_without_showing_it(values: dict[str, object], storage: bool) -> None:
    with pytest.raises(OptionError, match="holds a secret in plain text") as refusal:
        check_no_plain_secrets(values, where="arguments", storage=storage)
    assert "abc" not in str(refusal.value)


def test_a_secret_in_a_list_is_found() -> None:
    for values in ({"servers": [{"host": "a"}, {"password": "x"}]}, {"token": ["secret:env/T", "x"]}):
        with pytest.raises(OptionError, match=r"\[1\]") as refused:
            check_no_plain_secrets(values, where="arguments")
        assert "plain text" in str(refused.value)
    check_no_plain_secrets({"token": ["secret:env/T"], "names": ["x", 1]}, where="arguments")


def test_references_and_harmless_names_are_accepted() -> None:
    check_no_plain_secrets({"key": "carrier", "token_column": "t", "password": "secret:env/P", "token": ""}, where="a")
    names = ("submission.oauthTokenFile", "driver.secretKeyRef.DB_PASSWORD", "primaryKey", "tokenColumn")
    check_no_plain_secrets(dict.fromkeys(names, "x"), where="spark_conf")
    check_no_plain_secrets({"secret": "secret:env/S", "anon": True}, where="storage_options", storage=True)
