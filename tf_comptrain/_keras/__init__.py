# ruff: noqa: F401 (what is imported here is what the package uses)
"""Every use of Keras' and TensorFlow's internals, for Keras 3 and the legacy lane's Keras 2.

Nothing here decides anything: it answers questions (is this call a training call? which layers
has this model?) and performs the few acts that need private attributes.
"""

# First: it refuses a TensorFlow or a Keras that does not serve, and may not even import.
from tf_comptrain import backend
from tf_comptrain._keras.fit_loop import (
    PROCESS_ATTRIBUTES,
    batches_in_flight,
    batching_of,
    build_for_fit,
    epoch_logs,
    fitted_dataset,
    fitting,
    follow_cardinality,
    unsteady_shuffle_of,
)
from tf_comptrain._keras.gradients import custom_gradient
from tf_comptrain._keras.graphs import (
    captured_from_outside,
    captured_variables,
    kept_with,
    loop_body,
    operations_waiting_for,
    order_kept,
    run_again,
    run_eagerly,
    set_device,
    set_input,
    under_xla,
    wait_for,
    wait_for_nothing,
    wait_instead,
)
from tf_comptrain._keras.layers import (
    OPERATION,
    add_to_message,
    attributes,
    call_parameters,
    class_call,
    direct_sublayers,
    forget_traces,
    functional_of,
    graph_calls,
    graph_operations,
    has_own_call,
    input_specs,
    jit_compile,
    layer_output_hook,
    layers_without_xla,
    losses_of_calls,
    names_anew,
    reset_call,
    save_alone,
    save_along,
    set_call,
    set_jit_compile,
    strategy_scope,
    sublayers,
)
from tf_comptrain._keras.loops import LoopList, body_inputs, hold_list, loop_lists, register_bodies
from tf_comptrain._keras.optimizers import (
    has_schedule,
    loss_scale,
    momentum_slot,
    override_rate,
    reset_rate,
    steps_of,
)
from tf_comptrain._keras.overridden_step import (
    has_own_train_step,
    is_overridden,
    override_train_step,
    plain_train_step,
    reset_train_step,
)
from tf_comptrain._keras.profiles import planes_of_profile
from tf_comptrain._keras.runs import (
    after_first_steps,
    around_runs,
    forget_runs,
    loss_gradients,
    lowered_step,
    step_hook,
)
from tf_comptrain._keras.scopes import (
    branch_inside_tape,
    call_scope,
    draw_key,
    in_own_trace,
    in_plain_scope,
    in_scope_of_values,
    in_shape_inference,
    in_vectorized_map,
    kernel_devices,
    layer_scope,
    own_trace,
    plain_scope,
    quiet_tape,
    recording,
    scope_of_values,
    scope_says,
    training,
    training_scope,
    values_of,
    watched,
)
from tf_comptrain._keras.stages import (
    mask_of,
    move_slots,
    move_weight,
    reductions_of,
    reset_step,
    run_graph,
    runs_its_graph,
    set_mask,
    set_masks,
    set_step,
    step_set,
    weights_and_slots,
)
from tf_comptrain._keras.tapes import (
    BackwardPass,
    at_end_of_trace,
    end_trace,
    graphs_of_tapes,
    note_tapes,
    on_gradients,
    stop_recording,
    when_ordered,
)
from tf_comptrain._keras.train_step import (
    abandon_buffers,
    all_variables,
    build_for_step,
    build_optimizer,
    bytes_of,
    call_in_training,
    has_strategy,
    is_compiled,
    loss_in_training,
    lowered_train_step,
    mean_of_replicas,
    moving_statistics,
    note_loss,
    optimizers_of,
    replica_parts,
    replica_values,
    require_compiled,
    step_variables,
    steps_at_once,
    targets_forgotten,
    trace_train_step,
    train_step_runner,
    trainable_variables,
    unnumbered,
    weight_names,
)
from tf_comptrain._keras.version import KERAS_3, require_keras_3
from tf_comptrain._keras.weight_updates import WeightUpdate, by_handle, parts_of
from tf_comptrain._keras.workers import (
    are_workers,
    connect_workers,
    from_first,
    has_run,
    largest,
    of_all_workers,
    optionals_as_none,
    set_step_maker,
    worker_number,
)
