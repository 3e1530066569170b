"""The report of the webgpu device."""

from tools.webgpu_report import merged


def test_what_a_report_says_under_other_headings_stays():
    first = merged("", {"": ["# Report"], "Speed": ["| a | 1 |"], "On software": ["slow"]})
    assert first == "# Report\n\n## Speed\n\n| a | 1 |\n\n## On software\n\nslow\n"
    again = merged(first, {"": ["# Report"], "Speed": ["| a | 2 |"], "Endurance": ["long"]})
    assert again == first.replace("| 1", "| 2") + "\n## Endurance\n\nlong\n"
