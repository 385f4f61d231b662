"""What is trained.

options         what may be chosen, and the workload that studies know
material        the law, and the generator of labelled curves
dataset         the files of a data set: making, checking, opening, split, batches
floor           the Cramer-Rao bound: the smallest error that the noise of the curves allows
curves          a user's own curves: tables and arrays, units, checks
importing       a data set of them, with its provenance; the law fitted to them by least squares
room            memory and disk, looked at before they are needed
loaders         how batches come to the device that computes
model           the network
optimizer       the update rule and the arithmetic of a step
schedule        how long a run is, and its learning rate
job             what is trained on a rank, and what the record says of it
trainer         the step and the loop
graphs          whole steps as CUDA graphs
kernels         loss and gradients by kernels made for this network; triton_kernels: those in Triton
native          loss, gradients and update by code made for this network on a CPU (native.cpp)
probes/         what looks into further steps after the timed window
summary         what is told of a finished run
evaluation      the error on the test set, beside the floor
checkpoint      resumable state on disk
resume          what a resumed run may change: nothing but its budget
allocator       keeps the C library from giving memory back after every step
"""
