"""What is trained: material (law and generator), dataset (files, split, batches), model, schedule (learning rate)."""
