"""Published rules that keep NO promise, for comparison only. Nothing of the installed package imports them.

`drawn_pay` charges only the people whom a round drew (Heo et al. 2023); `true_cost` bounds what that really
costs them. `trusted_curve` takes a fitted curve for a bound (Liu et al. 2024).
"""
