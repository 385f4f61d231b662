"""`make bench BENCH=recording`: what it finds in the recorder, on fewer steps, and that its page says so."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from make.benchmarks import load_benchmark
from make.wording import Golden

from horovod_study.config.run import available_cores


@pytest.fixture(scope="module")
def recording() -> ModuleType:
    return load_benchmark("recording")


def test_memory_does_not_grow_with_the_steps(
    recording: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "WARMUP_STEPS", 5_000)
    monkeypatch.setattr(recording, "TRACED_STEPS", 20_000)
    found = recording.memory(tmp_path, 50_000)

    assert found["steps"] == 55_000
    assert found["objects_growth_mb"] < 0.5, "20,000 rows kept as numbers would be 1.8 MB"
    assert found["rss_growth_highest_mb"] < 5


@pytest.mark.slow
def test_rows_are_small_however_often_they_are_written(recording: ModuleType, tmp_path: Path) -> None:
    found = recording.rows(tmp_path, rounds=1)

    assert [each["rows_per_writing"] for each in found] == [1, 8, 64, 512]
    assert all(88 <= each["bytes_per_row"] <= 100 for each in found)


def test_the_page_holds_what_was_found(recording: ModuleType, golden: Golden) -> None:
    result: dict[str, Any] = {
        "measured": "2026-01-01T00:00:00+00:00",
        "machine": {"cpu_model": "a processor", "torch": "2"},
        "memory": {
            "steps": 1e6, "rss_growth_mb": 1.25, "rss_growth_highest_mb": 2.5, "objects_growth_mb": 0.05,
            "objects_peak_mb": 0.2, "traced_steps": 1e5, "file_mb": 90.0, "summary_s": 0.5,
            "summary_peak_growth_mb": 20.0,
        },
        "rows": [{"rows_per_writing": 512, "bytes_per_row": 89.6, "us_per_row": 3.21}],
        "command": [
            {"loop": "a loop", "workers": 2, "step_ms": 5.0, "recorded_us": [21, 9.6, 30], "control_us": [-2, -9, 5],
             "recorded_cpu_us": [20, 11, 29], "control_cpu_us": [1, -3, 4]}
        ],
        "kept": True,
    }  # fmt: skip
    page = "\n".join(recording.lines(result, "the table"))

    assert f"a processor, {available_cores()} cores" in page
    assert "## Memory over 1,000,000 steps" in page and "| 512 | 89.6 | 3.21 |" in page
    assert "| a loop | 2 | 5.00 | +21 [+10, +30] | -2 [-9, +5] | +20 [+11, +29] | +1 [-3, +4] |" in page
    golden.line(page, "100 bytes")
