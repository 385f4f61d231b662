"""`from horovod_study.lightning import StepRecorder`: records the steps of a Lightning Trainer."""

from horovod_study.recording.lightning import StepRecorder as StepRecorder
