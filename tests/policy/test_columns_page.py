"""The documentation's table of columns is the code's."""

from pathlib import Path

from polylib.policy.columns import column_table


def test_the_page_says_what_the_code_says():
    """To mend it: python -c "from polylib.policy.columns import column_table; print(column_table())"."""
    page = (Path(__file__).parents[2] / "docs" / "columns.md").read_text("utf-8")
    assert column_table() in page
