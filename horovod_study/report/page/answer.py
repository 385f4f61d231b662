"""What a study came to, in a few lines for a terminal: the page's headline, its points, the doubts, the cost."""

from horovod_study.analysis.study import Analysis
from horovod_study.report.page.doubts import told_doubts
from horovod_study.report.page.sentences import answer
from horovod_study.report.page.tables import tables
from horovod_study.text.numbers import THIN
from horovod_study.text.tables import to_lines, with_columns
from horovod_study.text.words import plural


def answer_lines(analysis: Analysis) -> list[str]:
    """Return headline, points, doubts and cost, with the numbers of the page."""
    found = {table.name: table for table in tables(analysis)}
    lines = answer(analysis)
    if "points" in found:
        shown = ("Workers", "Nodes", "Throughput", "Speedup", "Efficiency", "Outside")
        columns = enumerate(found["points"].columns)
        kept = [place for place, column in columns if column.head in shown and not column.page_only]
        lines += ["", *to_lines(with_columns(found["points"], kept)), ""]
    if doubts := told_doubts(analysis):
        lines.append(f"{plural(len(doubts), 'doubt')}: see the page")
    # Rows of a table do not say how long they took.
    if "wall_s" in analysis.runs and analysis.runs["wall_s"].notna().any():
        runs = analysis.runs[analysis.runs["wall_s"].notna()]
        hours = float((runs["wall_s"] * runs["workers"]).sum()) / 3600
        unit = "GPU hours" if (runs["device"] == "cuda").all() else "worker hours"
        minutes = float(runs["wall_s"].sum()) / 60
        lines.append(f"cost: {plural(len(runs), 'run')}, {minutes:,.1f} min of training, {hours:,.3g} {unit}")
    return [line.replace(THIN, " ") for line in lines]
