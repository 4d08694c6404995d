"""Options whose values are never shown."""

import pickle

from headrace.core.secrets import SecretOptions

OPTIONS = SecretOptions.of({"secret_key": "s3cret-of-mine", "allow_http": "true"})


def test_values_are_revealed_only_when_asked_for() -> None:
    assert repr(OPTIONS) == str(OPTIONS) == "SecretOptions(allow_http=***, secret_key=***)"
    assert OPTIONS.reveal() == {"secret_key": "s3cret-of-mine", "allow_http": "true"}
    assert pickle.loads(pickle.dumps(OPTIONS)) == OPTIONS
    assert SecretOptions.of({"allow_http": "true", "secret_key": "s3cret-of-mine"}) == OPTIONS


def test_values_are_taken_out_of_the_messages_of_others() -> None:
    longer = SecretOptions.of({"a": "s3cret", "b": "s3cret-and-more"})
    assert longer.clean("GET ?key=s3cret-and-more&sig=s3cret is it true?") == "GET ?key=***&sig=*** is it true?"
    assert OPTIONS.clean("is it true?") == "is it true?"
