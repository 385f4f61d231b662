"""The run directory: the only package that knows its format, and the only place where the two wings meet.

Others import from here, and of the modules below nothing else:

model.py             what a run directory holds: names, RunRecord, columns of rows, digests, history of the schema
forms.py             the declared form of run.json, bench.json and source.json, and ranges in which a value can be true
arrow.py             rows in Arrow streams
turns.py             slices of cells that alternate, and which of them count
reader.py            read a run, finished or not
writer.py            write a run, on a disk that may be full
tables.py            the runs of a study as tables
analysis_folder.py   tables and documents of an analysis, and what they were made of
"""

from horovod_study.records.analysis_folder import (
    SOURCE,
    SOURCE_SCHEMA,
    analysis_options,
    earlier_report,
    holds_tables,
    is_older,
    is_whole,
    load_tables,
    read_source,
    save_tables,
    write_source,
)
from horovod_study.records.model import (
    ALL_STEPS,
    BENCH_SCHEMA,
    CHECKPOINTS,
    COMMAND,
    EPOCH_COLUMNS,
    MANIFEST,
    MAX_TRAININGS,
    RESERVE,
    SCHEMA,
    TIMELINE,
    NoRoom,
    RunRecord,
    benches_beside,
    checkpoint_paths,
    checkpoint_step,
    digest_of,
    facts,
    finite,
    hosts_of,
    is_command,
    max_over_ranks,
    mean_over_ranks,
    per_node,
    profile_paths,
    rows_lost,
    run_files,
    run_name,
    step_ranks,
    step_schema,
    step_totals,
    system_schema,
    timed_from,
    training_directory,
    unlike_written,
)
from horovod_study.records.reader import (
    RecordedRun,
    RunSideFiles,
    SystemSamples,
    epoch_rows,
    last_step,
    named_records,
    read_ablation,
    read_run,
    read_step_column,
    read_steps,
    read_synchronisation,
    read_system,
    read_system_rows,
    read_timeline,
    readable_runs,
    recorded_run,
    rows_between,
    run_directories,
    run_side_files,
    runs_beside,
    set_aside,
    synchronised_run,
    system_columns,
)
from horovod_study.records.tables import (
    COMMANDS,
    OF_EVERY_RUN,
    epoch_table,
    evaluation_table,
    joined_tables,
    rate_unit,
    recorded_runs,
    run_table,
)
from horovod_study.records.turns import (
    TURNS_FILE,
    RunTurns,
    TurnSlice,
    append_turns,
    read_turns,
    run_turns,
    turns_files,
    turns_folders,
)
from horovod_study.records.writer import (
    RESERVE_BYTES,
    ROWS_JOINED,
    SILENT_S,
    StepWriter,
    SystemWriter,
    append_epoch,
    create_run,
    finish_run,
    is_over,
    profile_path,
    require_ended,
    require_no_run,
    resume_run,
    silent_s,
    truncate_epochs,
    write_bench,
    write_profile,
    write_profile_table,
)
