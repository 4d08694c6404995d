"""A password in a URL is used, but never shown."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.secrets import SecretUrl


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("sqlite:////abs/b.db", "sqlite:////abs/b.db"),
        ("postgresql://h/db", "postgresql://h/db"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql://u:pw@h:5/db?sslmode=require", "postgresql://u:***@h:5/db?sslmode=require"),
        ("postgresql://u@h/db?password=pw&sslpassword=x", "postgresql://u@h/db?password=***&sslpassword=***"),
        ("postgresql://:pw@h/db", "postgresql://:***@h/db"),
        ("postgres://u:a:b@c@h/db", "postgres://u:***@h/db"),
        ("postgresql://[broken:pw@h/db", "postgresql:***"),
        ("postgresql:///db?password=pw", "postgresql:///db?password=***"),
    ],
)
def test_the_password_is_left_out(url: str, shown: str) -> None:
    secret = SecretUrl(url)
    assert str(secret) == f"{secret}" == shown
    assert repr(secret) == f"SecretUrl({shown!r})"
    assert repr({"url": secret}) == f"{{'url': SecretUrl({shown!r})}}"
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert secret.text == url


passwords = st.text(st.characters(codec="ascii", categories=["L", "N", "P"], exclude_characters="/?#[]@%"), min_size=6)


@given(passwords)
def test_messages_of_others_are_cleaned(password: str) -> None:
    secret = SecretUrl(f"postgresql://tester:{password}@host/db")
    said = secret.clean(f"can't log in: <{password}> is wrong, <{secret.text}>")
    assert f"<{password}>" not in said
    assert f":{password}@" not in said
