import gc

from headrace.core.log import long_lived


def test_what_exists_is_left_out_of_collections_for_a_while() -> None:
    before = gc.get_freeze_count()
    with long_lived():
        assert gc.get_freeze_count() > before + 1000
    assert gc.get_freeze_count() == 0
