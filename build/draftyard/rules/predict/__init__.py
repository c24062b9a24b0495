"""Predicts memory, step time, speed-up and crossover from sizes, device constants and fitted efficiencies."""
