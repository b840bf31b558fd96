"""Isolation: what is computed for one record depends on no other record (rule 12, docs/soundness.md#isolation).

Clipping bounds what a record contributes only if its per-example gradient is made of that record alone, so whatever
could mix records is checked, and refused with a hint what to do instead. What is checked, where and when:

=====================  ========================================================  ================================
What                   How                                                       When
=====================  ========================================================  ================================
layers (`layers`)      kinds that mix or remember records, by their options      when training begins
model (`model`)        same rows beside other records; same gradients back       at the first passes, then at random,
                                                                                 and at questions in evaluation mode
memory (`memory`)      what the model holds is the same whoever went through     with the model
batches (`batches`)    collate_fn and __getitems__ give a record the same row    at the first batches, then at random
loss_fn (`loss_fn`)    same loss beside other records; same gradients back       at the first batches, then at random,
                                                                                 and in norm passes
weights (`saved`)      what is saved is not written to by a training_step        versions at every batch, values
                                                                                 at the first, then at random
a loop (`tracking`)    the record dimension followed from loader to loss         every operation of every step
=====================  ========================================================  ================================

The first five compare: the same question is asked with other records beside a record, and the same random numbers
(`replaced_records`, `training/step_randomness.py`). The sixth sees what was left behind. The last one proves: only
operations that are known to keep records apart lead from the loader's batch to a loss. Randomness must not tell who
was drawn either; `training/step_randomness.py` says why.
"""
