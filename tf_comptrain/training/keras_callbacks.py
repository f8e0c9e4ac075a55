"""Keras' callbacks around a training of `fit`."""

from __future__ import annotations

from typing import Any

from tensorflow import keras


def callback_list(model: keras.Model, callbacks: Any, verbose: int, epochs: int, steps: int) -> Any:
    """Keras' own container, with History and progress bar, as `model.fit` makes it."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=True,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
        model=model,
    )


def begin(callbacks: Any, goes_on: bool) -> None:
    """`on_train_begin`. Where a training goes on, CSV logs are appended to: they hold the epochs before."""
    logs = [callback for callback in callbacks.callbacks if isinstance(callback, keras.callbacks.CSVLogger)]
    given = [log.append for log in logs]
    for log in logs:
        log.append = log.append or goes_on
    callbacks.on_train_begin()
    for log, append in zip(logs, given):
        log.append = append


def show_steps(callbacks: Any, steps: int) -> None:
    """Sets the length of the progress bar."""
    for callback in callbacks.callbacks:
        if isinstance(callback, keras.callbacks.ProgbarLogger):
            callback.target = steps
            if callback.progbar is not None:
                callback.progbar.target = steps
