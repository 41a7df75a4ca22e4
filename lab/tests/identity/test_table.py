"""The tables: numbers by hand, and the published page equal to its records."""

from lab.tests.figures.samples import make_identity

from sparsewire_lab.identity.table import identity_table


def test_a_row_by_hand() -> None:
    runs = [make_identity([2.0, 0.0], seed=0), make_identity([2.0, 1.0, 0.0], seed=1)]
    row = identity_table(runs).splitlines()[2]
    assert row == (
        "| 8 | identity | sparse | fixed at 1 | 0.005 | 1,000 | 2 | 0 ± 0 | 0 % | "
        "150 steps, 1.5 s | converges |"
    )


def test_of_a_sweep_the_best_rate_is_shown() -> None:
    runs = [
        make_identity([2.0, error], size=16, method="reinforce", lr=rate)
        for rate, error in ((0.1, 1.5), (0.01, 0.25), (0.001, 1.0))
    ]
    (row,) = identity_table(runs).splitlines()[2:]
    assert "| reinforce | fixed at 1 | 0.01 |" in row
    assert row.endswith("| 0.25 | 0 % | never | fails |")


def test_what_differs_from_the_plain_row_is_said() -> None:
    """Seeds that did not arrive, a share that is nearly all, the error of a band unrounded."""
    runs = [make_identity([2.0, 0.0], seed=0), make_identity([2.0, 1.0], seed=1)]
    assert "| 1 of 2 seeds |" in identity_table(runs)
    run = make_identity([2.0, 5.0], target="band", method="rewire")
    run["final"] |= {"found": 0.99997, "expected_error": 0.125}
    assert "| 5 (not rounded: 0.125) | 99.997 % |" in identity_table([run])
