"""What is trained.

options         what may be chosen, and the workload that studies know; how long a run is, and its learning rate
material        the law, the generator of labelled curves, and the smallest error that their noise allows (Cramer-Rao)
dataset         the files of a data set: making, checking, opening, split, batches
curves          a user's own curves: tables and arrays, units, checks, the law fitted to them, a data set of them
room            memory and disk, looked at before they are needed; memory that is kept after every step
loaders         how batches come to the device that computes
model           the network
optimizer       the update rule and the arithmetic of a step
trainer         what is trained on a rank, its record, the step, the loop, and the error on the test set
graphs          whole steps as CUDA graphs
kernels         loss and gradients by kernels made for this network; triton_kernels: those in Triton
native          loss, gradients and update by code made for this network on a CPU (native.cpp)
synchronisation what a synchronisation is made of, and what a step takes without it, in further steps
profiling       further steps under a profiler, operations that wait for the device, and Horovod's own timeline
scratch         steps that leave no trace, after which the model is put back
checkpoint      resumable state on disk
resume          what a resumed run may change: nothing but its budget
"""
