"""What the machine did, can do and costs: network, sensors, energy, memory.

network.py      what a network can do, from measured collectives: bandwidths, latency, the roofline
advice.py       data or model parallel? The arithmetic of memory, messages and time for one model
resources.py    energy per sample and worker hours, and how these grow; use and power against workers and over time;
                what the sensors of a run's hosts say: phases, means and maxima, missed samples, doubts
"""
