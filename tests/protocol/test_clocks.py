"""The checker itself, on schedules small enough to see."""

from tests.protocol.clocks import HOST, Buffer, Checker, Moment


def use(checker, actor, buffer, write, lo=0, hi=8):
    checker.begin(actor)
    checker.access(actor, buffer, lo, hi, write, "work")


def test_one_stream_is_in_order():
    checker, buffer = Checker(), Buffer("b", 0)
    for write in (True, False, True, True):
        use(checker, "s", buffer, write)
    assert not checker.violations


def test_two_streams_are_not():
    for first, second in ((True, True), (True, False), (False, True)):
        checker, buffer = Checker(), Buffer("b", 0)
        use(checker, "s", buffer, first)
        use(checker, "t", buffer, second)
        assert len(checker.violations) == 1 and "race in b" in checker.violations[0]
    checker, buffer = Checker(), Buffer("b", 0)
    use(checker, "s", buffer, False)
    use(checker, "t", buffer, False)
    assert not checker.violations


def test_other_bytes_do_not_matter():
    checker, buffer = Checker(), Buffer("b", 0)
    use(checker, "s", buffer, True, 0, 8)
    use(checker, "t", buffer, True, 8, 16)
    assert not checker.violations
    use(checker, "t", buffer, False, 7, 9)
    assert len(checker.violations) == 1


def test_an_event_orders_what_came_before_it_and_nothing_later():
    checker, buffer, moment = Checker(), Buffer("b", 0), Moment()
    use(checker, "s", buffer, True, 0, 8)
    checker.record(moment, "s")
    use(checker, "s", buffer, True, 8, 16)
    checker.wait("t", moment)
    use(checker, "t", buffer, False, 0, 8)
    assert not checker.violations
    use(checker, "t", buffer, False, 8, 16)
    assert len(checker.violations) == 1


def test_order_is_handed_on():
    checker, buffer, first, second = Checker(), Buffer("b", 0), Moment(), Moment()
    use(checker, "s", buffer, True)
    checker.record(first, "s")
    checker.wait("t", first)
    checker.record(second, "t")
    checker.wait("u", second)
    use(checker, "u", buffer, True)
    assert not checker.violations


def test_a_wait_stands_for_the_moment_of_the_wait():
    """An event that is recorded anew later does not move a wait."""
    checker, buffer, moment = Checker(), Buffer("b", 0), Moment()
    checker.record(moment, "s")
    checker.wait("t", moment)
    use(checker, "s", buffer, True)
    checker.record(moment, "s")
    use(checker, "t", buffer, False)
    assert len(checker.violations) == 1


def test_the_host_is_ahead_of_streams_but_not_behind():
    checker, buffer, moment = Checker(), Buffer("b", None, pinned=True), Moment()
    use(checker, HOST, buffer, True)
    use(checker, "s", buffer, False)  # given to the stream after the host had written
    assert not checker.violations
    checker.record(moment, "s")
    checker.wait(HOST, moment)
    use(checker, HOST, buffer, True)
    assert not checker.violations
    use(checker, "s", buffer, False)
    use(checker, HOST, buffer, True)
    assert len(checker.violations) == 1


def test_memory_is_not_freed_while_another_stream_uses_it():
    checker, buffer, moment = Checker(), Buffer("b", 0, owner="s"), Moment()
    use(checker, "s", buffer, True)
    checker.record(moment, "s")
    checker.wait("t", moment)
    use(checker, "t", buffer, False)
    checker.free(buffer)
    assert len(checker.violations) == 1 and "freed" in checker.violations[0]


def test_a_race_is_not_forgotten_behind_an_ordered_access():
    """What an ordered access covers may be dropped; what it does not order may not."""
    checker, buffer, moment = Checker(), Buffer("b", 0), Moment()
    use(checker, "s", buffer, True)
    checker.record(moment, "s")
    use(checker, "t", buffer, True, 8, 16)
    checker.wait("u", moment)
    use(checker, "u", buffer, True)
    checker.violations.clear()
    use(checker, "v", buffer, True, 0, 16)
    assert len(checker.violations) == 2
