"""What is inside the ranks of somebody's training: the standard library and torch alone, of Python 3.9 and later.

The Python of a training need not have what this package needs: nothing here imports more of it than this folder and
`errors`.

events    what happens in a training, 16 bytes an event, written as it comes; where it is, 20 times a second
watch     the hooks that see it: updates, the loader, backward, the model's call, the waits for other ranks; and what
          is told where a script says where its loops are, for `horovod_study.recorder`
facts     what runs: model, optimizer, what they compute in, library of the workers, machine
turns     the wait between slices of steps, where cells of a study train one at a time

The parent, `recording.command`, makes the run directory of it.
"""
