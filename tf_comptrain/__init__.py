"""Trains TensorFlow/Keras models with their saved activations stored compressed."""
