"""A user's own curves: files of seven layouts in, checked curves in one form out.

    values       what a reading is asked for and what it gives: ReadOptions, Curve, CurveSet
    units        units of strain and stress, and the names of columns
    text_table   one delimited text file: encoding, delimiter, decimal mark, preamble, names, numbers
    tables       the layouts made of text files: long, folder, wide, machine
    parquet      tables in Parquet files
    numpy_files  .npy and .npz on the disk, damaged and foreign ones refused
    arrays       curves in a .npz file
    blocks       the .npy pair and the .npz of a split data set, memory-mapped and read block by block
    checks       what is wrong with a curve, what is only odd, and the repairs that were asked for
    channels     curves to the (3, 201) of the network
    reading      finds the layout and reads: `read_curves`
    importing    a data set for training from files: `import_curves`

Nothing is repaired silently: without an option that asks for it, bad data is a DataError of one line that names file,
specimen, line, value and remedy; what was asked for is counted and reported. Nothing is unpickled.
"""

from horovod_study.workload.curves.channels import to_channels
from horovod_study.workload.curves.reading import read_curves
from horovod_study.workload.curves.values import CurveSet, ReadOptions

__all__ = ["CurveSet", "ReadOptions", "read_curves", "to_channels"]
