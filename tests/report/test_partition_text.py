from __future__ import annotations

import io

from rich.console import Console

from fedpm_lightning.report.partitions.text import heat_blocks, print_partition, shade, shares

TWO = {"sizes": [4, 2], "histogram": [[4, 0], [1, 1]], "sha256": "0123456789abcdef", "num_samples": 7}


def printed(partition, width=80) -> str:
    text = io.StringIO()
    print_partition(partition, "digits, IID()", Console(file=text, width=width))
    return text.getvalue()


def test_shares_and_shades():
    assert shares([[3, 1], [0, 0]]) == [[0.75, 0.25], [0, 0]]
    assert "".join(map(shade, (0, 0.01, 0.25, 0.26, 0.5, 0.75, 0.76, 1))) == " ░░▒▒▓██"


def test_few_clients_have_a_line_each():
    text = printed(TWO)
    assert "2 clients, 6 samples (1 more belong to no client), 0123456789ab" in text
    lines = [line.rstrip() for line in text.splitlines()]
    assert any(line.endswith("0  4  1.00        ██") for line in lines), text
    assert any(line.endswith("1  2  2.00        ▒▒▒▒") for line in lines)
    assert "total variation   mean 0.250" in text  # p = (5, 1)/6: (1/6 + 1/3) / 2
    assert max(len(line) for line in lines) <= 80


def test_many_clients_come_in_blocks_of_the_terminals_width():
    histogram = [[k % 2, 1 - k % 2] for k in range(142)]
    text = printed({"sizes": [1] * 142, "histogram": histogram})
    assert "clients 0 to 69" in text and "clients 70 to 139" in text and "clients 140 to 141" in text
    rows = [line.split("│")[1] for line in text.splitlines() if line.startswith("class 0")]
    assert "".join(rows) == " █" * 71
    assert all(block.plain.count("│") == 4 for block in heat_blocks(histogram, 80))


def test_named_clients_stand_by_name():
    text = printed({**TWO, "names": ["Ann", "B [x]"]})
    assert "   Ann  4  1.00        ██" in text and " B [x]  2  2.00" in text


def test_named_clients_of_many_classes_are_a_list_by_size():
    histogram = [[k + 1, *[0] * 38, 2] for k in range(32)]
    sizes = [sum(row) for row in histogram]
    text = printed({"sizes": sizes, "histogram": histogram, "names": [f"role {k}" for k in range(32)]})
    lines = [line.split() for line in text.splitlines() if "role" in line]
    assert [line[0] for line in lines] == [str(k) for k in range(31, 1, -1)] and len(lines) == 30
    assert lines[0][1] == "34" and lines[0][2] == "1.25" and lines[0][-1] == "31" and "│" not in text
    assert text.splitlines()[-1].split() == ["...", "7", "2", "smaller", "ones"]


def test_data_without_classes():
    assert "no heat map" in printed({"sizes": [1, 2], "histogram": []}) and "Gini" in printed({"sizes": [1, 2]})
    assert "no sizes are known" in printed({})
