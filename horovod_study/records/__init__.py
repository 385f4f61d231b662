"""The run directory: the only package that knows its format, and the only place where the two wings meet.

Others import from here what the modules below say in public, and never from them:

model.py             what a run directory holds: names, forms of its documents, columns of rows, history of the schema
reader.py            read a run, finished or not, and which slices of cells that alternate count
writer.py            write a run, on a disk that may be full
tables.py            the runs of a study as tables; tables and documents of an analysis, and what they were made of
"""

from horovod_study.records.model import *
from horovod_study.records.reader import *
from horovod_study.records.tables import *
from horovod_study.records.writer import *
