"""What is inside the ranks of somebody's training: the standard library and torch alone, of Python 3.9 and later.

The Python of a training need not have what this package needs: nothing here imports more of it than this folder and
`errors`. The hooks of `watch` note `events`, `facts` says what runs, and `turns` waits where cells of a study train one
at a time; the parent, `recording.command`, makes the run directory of it.
"""
