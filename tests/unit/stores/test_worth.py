from headrace.stores.runs import Worth


def test_merges_that_save_few_rows_are_left_out_for_a_while() -> None:
    worth = Worth()
    assert worth.wanted(1000)
    worth.merged(1000, 801)
    assert [worth.wanted(1000) for _ in range(8)] == [False] * 7 + [True]
    worth.merged(1000, 800)
    assert all(worth.wanted(1000) for _ in range(8))


def test_each_size_is_judged_by_itself() -> None:
    worth = Worth()
    worth.merged(1000, 1000)
    assert (worth.wanted(2000), worth.wanted(500), worth.wanted(1023), worth.wanted(512)) == (True, True, False, False)


def test_a_store_in_order_always_merges() -> None:
    worth = Worth(always=True)
    worth.merged(1000, 1000)
    assert all(worth.wanted(1000) for _ in range(8))
