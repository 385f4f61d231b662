"""What tests are made from: records and rows of runs that never ran, studies with a known truth, points, stand-ins."""
