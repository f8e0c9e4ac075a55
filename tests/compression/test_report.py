"""What a report prints: a summary, the largest tensors, all of them; as text, HTML and Markdown."""

import re

import numpy as np
from browser import shown
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.report import Report, ReportRow, StepRows

ODD = '<b>|"&'
NAME = "a_layer_whose_name_is_longer_than_any_column_of_a_table_would_be"


def row(k, storage="compress", **fields):
    path = f"text_encoder/stage_{k % 4}/block_{k}/attention/{'query' if k % 2 else 'key'}"
    held = {"compress": 100, "keep": 4000, "bitmask": 125}[storage]
    shown = {"bound": "0.2 sigma", "bits": 3.2, "path": path, "operation": "BiasAdd"}
    shape = (10, 100)
    return ReportRow(
        f"model_1/{path}/BiasAdd",
        "BiasAdd",
        "read by MatMul",
        storage,
        shape,
        4000,
        held,
        **{**shown, **fields},
    )


ROWS = [row(k) for k in range(30)] + [row(30, "keep", note="it is asked for"), row(31, "bitmask")]


def traced(rows=ROWS, batch_size=None, small=(0, 0)):
    found = Report("model", (), renew=lambda: StepRows(rows, batch_size, *small))
    found.note_engine("XLA", None)
    return found


def test_print_begins_with_the_sums_and_has_the_ten_largest_tensors():
    found = traced(batch_size=64)
    found.peak_bytes = 12_000_000
    lines = str(found).splitlines()
    assert len(lines) < 40 and max(map(len, lines)) <= 110
    assert lines[2] == "Held per sample: 7.12 kB predicted, of 128 kB as plain values (18.0x)."
    assert lines[3] == "At batch 64: 456 kB held, of 8.19 MB."
    assert "The step runs on XLA." in lines and "Peak: 12 MB, measured by MemoryLogger." in lines
    start = next(k for k, line in enumerate(lines) if line.startswith("storage"))
    assert [line.split()[0] for line in lines[start + 2 : start + 6]] == [
        "compress",
        "keep",
        "bitmask",
        "all",
    ]
    assert lines[start + 2].split()[1:3] == ["30", "120"]
    (start,) = (k for k, line in enumerate(lines) if line.startswith("The 10 largest of 32 tensors"))
    largest = lines[start + 3 : start + 13]
    assert largest[0].split()[0] == ".../stage_2/block_30/attention/key" and "keep" in largest[0]
    assert "block_31" in largest[1] and "block_0" in largest[2]
    assert lines[-1] == "All 32 tensors: print(report.table())"


def test_small_tensors_are_mentioned_where_they_are_a_tenth_of_what_is_held():
    said = "Besides, 9 tensors too small to compress stay as they are: 720 B a sample, 46.1 kB at batch 64."
    assert said in str(traced(batch_size=64, small=(9, 720))).splitlines()
    assert "Besides" not in str(traced(batch_size=64, small=(9, 700)))


def test_the_table_has_a_line_for_every_tensor_and_breaks_no_name():
    rows = [*ROWS, row(32, path=f"encoder/{NAME}")]
    text = traced(rows).table()
    assert all(text.count(f"{one.path} ") == 1 for one in rows)
    assert "it is asked for" in text and "Held per sample" in text
    assert f".../{NAME} " in str(traced([row(0, path=f"encoder/{NAME}")]))


def test_few_tensors_are_all_shown():
    text = str(traced(ROWS[:2]))
    assert "Tensors, per sample" in text and "largest" not in text and "report.table()" not in text
    assert not re.search("^all ", text, re.M)


def test_before_a_step_is_traced():
    assert (
        "known from the first one on" in str(Report("model", ())) and Report("model", ()).batch_size is None
    )
    assert "the model alone, without its loss" in str(Report("model", ROWS))
    assert "runs as plain Keras: why" in str(Report("model", (), "why"))


def test_a_plans_reasons_are_shown_in_part():
    found = traced()
    reasons = [f"tensor {k}: stream" for k in range(25)]
    found.notes = lambda: ["", "peak 3 GB", "", *reasons, "", "Measured after step 2."]
    text = str(found)
    assert text.index("peak 3 GB") < text.index("Measured after step 2.") < text.index("largest of 32")
    assert text.count(": stream") == 10 and "... and 15 more in the table" in text
    assert found.table().count(": stream") == found.to_html().count(": stream") == 25
    assert "<summary>25 tensors of the plan</summary>" in found.to_html()


def test_every_text_is_escaped():
    one = ReportRow(ODD, "Conv2D", "input", "compress", (4, None), 16, 4, "0.1 sigma", ODD)
    found = Report(ODD, (one,), ODD)
    page, text = found.to_html(), found.to_markdown()
    assert page.count("&lt;b&gt;|&quot;&amp;") == 4 and ODD not in page
    assert page.count("</tr>") == 4 and "<td>4x?</td>" in page
    line = text.splitlines()[-1]
    assert line.count("|") == 11 and line.startswith("| &lt;b&gt;&#124;") and "| 16 B | 4 B |" in line
    assert ODD not in text


def test_a_notebook_shows_a_part_with_a_style_of_its_own():
    part = traced()._repr_html_()
    assert part.startswith('<div class="tf-comptrain">') and traced().to_html() in part
    (style,) = re.findall("<style>(.*?)</style>", part, re.S)
    assert all(rule.strip().startswith(".tf-comptrain") for rule in re.findall(r"([^{}]+)\{", style))
    assert not re.search(r"(src|href)=|https?://|@import|url\(", part)


def test_a_browser_sorts_the_table_once_a_click(tmp_path):
    clicks = """
    const table = document.querySelectorAll("table.sortable")[1];
    const heads = [...table.tHead.rows[0].cells], held = heads.findIndex(head => head.textContent === "held");
    heads[held].click(); heads[held].click();
    const rows = [...table.tBodies[0].rows].slice(0, 3);
    document.title = "sorted " + rows.map(row => row.cells[held].textContent).join();
    """
    twice = traced()._repr_html_() + traced()._repr_html_()  # a cell that ran again: each part has the script
    page = tmp_path / "page.html"
    page.write_text(f'<meta charset="utf-8"><title></title><body>{twice}<script>{clicks}</script></body>')
    assert "<title>sorted 4 kB,125 B,100 B</title>" in shown(page, tmp_path)


def test_what_a_report_says_once_the_model_is_restored():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
    model.compile(loss="mse", jit_compile=False)
    batch = np.ones((32, 64), "float32"), np.ones((32, 1), "float32")
    report = ct.compress_model(model)
    model.train_on_batch(*batch)
    rows = report.rows
    ct.restore_model(model)
    model.train_on_batch(*batch)
    assert "compress" in [row.storage for row in rows] and report.rows == rows
    assert "The model is restored, and trains as plain Keras. Before:" in str(report)


def test_a_report_says_that_training_is_eager():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
    batch = np.ones((32, 64), "float32"), np.ones((32, 1), "float32")
    report = ct.compress_model(model)
    for eagerly in (False, True, False):
        model.compile(loss="mse", jit_compile=False, run_eagerly=eagerly)
        model.train_on_batch(*batch)
        assert ("The model runs as plain Keras: in eager mode" in str(report)) == eagerly
