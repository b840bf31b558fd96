"""Terms under which whoever takes part has rate 1: what a record adds to an answer can be seen."""

from dataclasses import replace

import numpy as np
from federation import maker, terms_with

from privypurse.accounting import CertifiedTable
from privypurse.federated.terms import Offer

TERMS = terms_with(rounds=300, local_steps=4, noise_multiplier=1.7, batch_size=7, most_joined=300, clip_norm=0.25)
RATE_1 = CertifiedTable(np.ones(1), np.full(1, 500.0))  # it costs less than that
OFFER = Offer(TERMS, RATE_1)
ONE_STEP = Offer(replace(TERMS, local_steps=1), RATE_1)
EVERYTHING, NOTHING = 1000.0, 1.0  # what people grant: rate 1, or too little for any
made = maker(OFFER, EVERYTHING)
